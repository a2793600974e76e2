"""The file formats, each in a module of its own or a few that begin with its name; `base` says what one has to do."""
