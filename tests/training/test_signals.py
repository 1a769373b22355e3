"""Signals: the first requests a save, a second interrupt ends the process."""

import os
import signal

import pytest

from anytime_jax.training import signals


@pytest.mark.parametrize("name", ["SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU"])
def test_signals_of_terminals_and_schedulers_request_a_save(name):
    number = getattr(signal, name)
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with signals.interruptible() as interrupted:
            os.kill(os.getpid(), number)
            assert interrupted()
        signal.signal(number, signal.SIG_IGN)
        with signals.interruptible() as interrupted:  # as under nohup
            os.kill(os.getpid(), number)
            assert not interrupted()
    finally:
        signal.signal(number, before)


def test_first_signal_requests_a_save_and_a_second_interrupt_kills():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    for number in (signal.SIGTERM, signal.SIGINT):
        with signals.interruptible() as interrupted:
            assert not interrupted()
            os.kill(os.getpid(), number)
            assert interrupted()
            os.kill(os.getpid(), signal.SIGTERM)  # a scheduler may repeat it during the save
            assert interrupted()
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
