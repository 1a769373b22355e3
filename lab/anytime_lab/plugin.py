"""Contents of this distribution: the commands of the laboratory, its configurations and studies."""

from pathlib import Path

from anytime_jax.plugins import Command, Folder, Plugin

_PACKAGE = Path(__file__).resolve().parent


def _command(module: str, summary: str) -> Command:
    return Command(f"anytime_lab.{module}", summary)


STUDIES = Folder(
    _PACKAGE / "studies",
    "studies by name (--study=NAME, or --config=NAME:RUN for one of its runs)",
    function="get_study",
    local="configs/studies",
)
CONFIGURATIONS = Folder(
    _PACKAGE / "configs", "configurations of the laboratory by name (--config=NAME)"
)
PLUGIN = Plugin(
    commands={
        "report": _command(
            "report",
            "Draw the figures and tables of a study, or the curves of one run or several.",
        ),
        "forecast": _command(
            "forecast.forecast_command",
            "Forecast the losses of a run: live, averaged, decayed, and what each further 0.01 "
            "nats cost.",
        ),
        "readout": _command(
            "readout.readout_command",
            "Compare f25 with the other weights of a run and other averages, without training.",
        ),
        "sweep": _command("study.sweep_command", "List or train the runs of a study."),
        "leaderboard": _command(
            "leaderboard.leaderboard_command",
            "Compare optimizers, schedules and read-outs of a study with the tuned cosine.",
        ),
        "best-peaks": _command(
            "width.best_peaks",
            "Find the best peak at each width or budget of a study, and the loss that another's "
            "gives away.",
        ),
        "differences": _command(
            "differences",
            "Compare groups of a study's runs with one of them, paired by seed.",
        ),
        "fine-tunes": _command(
            "fine_tunes",
            "Compare the models that a study tunes, each at its best peak, paired by seed.",
        ),
        "larger-batches": _command(
            "larger_batches",
            "Compare branches with larger batches with their trunks, at equal tokens and at equal "
            "updates.",
        ),
        "plan": _command(
            "width.plan_command",
            "Print the settings that a larger model takes from a small run, and why.",
        ),
        "compile": _command(
            "compilation.compile_command",
            "Compile the update of a run for accelerators that are not there.",
        ),
        "theory": _command(
            "theory.theory_command",
            "Compute exact risks of SGD on power-law linear regression.",
        ),
        "package-text": _command(
            "package_text.package_text_command",
            "Make training and validation sets of the text of pinned packages, without "
            "near-duplicates.",
        ),
    },
    folders=(CONFIGURATIONS, STUDIES),
)
