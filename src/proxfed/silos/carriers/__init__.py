"""What brings questions and answers from one organisation to another."""
