"""What things cost: prices of models, and what an answer's usage comes to in nano-dollars."""
