"""The formats that only one of the five systems has; they register as formats of other packages do."""
