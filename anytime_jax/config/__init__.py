"""What a run is: settings, how they are read, and points in a run."""
