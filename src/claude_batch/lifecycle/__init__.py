"""What happens between asking and answering, one file a step; `engine` turns the crank."""
