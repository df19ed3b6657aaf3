"""Where do containers and volumes live? One folder for each answer, all behind `torpor.ports.Runtime`."""
