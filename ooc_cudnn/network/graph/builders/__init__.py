"""The methods of `Network` that add nodes: mixins, one file a family."""
