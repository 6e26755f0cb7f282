"""The facts and measures of a directory as values, and the page that shows them."""
