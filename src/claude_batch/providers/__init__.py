"""The providers: who answers an actor, and what an actor, a run and a result are to a caller."""
