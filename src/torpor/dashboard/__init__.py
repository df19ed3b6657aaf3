"""The dashboard: the web page of Torpor."""
