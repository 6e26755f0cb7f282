"""Work on whole stores: new directories made from others."""
