"""Programs that use the library as their readers would."""
