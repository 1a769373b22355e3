"""From the records of runs to figures and tables: reads files, never the trainer."""
