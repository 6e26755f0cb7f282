"""What a directory has measured, gathered as values; and the page that shows it."""
