"""What elk-ir does not have: an operator, a chip and a target."""
