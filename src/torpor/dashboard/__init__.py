"""The web page: what people see of Torpor."""
