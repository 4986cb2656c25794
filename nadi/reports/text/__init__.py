"""What commands print: each module makes the text of one kind of finding, and computes nothing."""
