"""Studies: sets of runs written as code, trained together, and read from their records.

Begin with `plan`, which study files use; `study_files` finds and reads them. `tasks`,
`local_executor` and `slurm_scripts` train them, and `packed_records` continues one from an
archive. `results` reads their records, `selection` selects settings as the paper does, and
`paper_losses` has the losses that the paper published.
"""
