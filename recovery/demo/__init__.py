"""The demo: a flow over real flights, killed and resumed."""
