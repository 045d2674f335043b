"""Models of published measurements, one file a family, and the rules that read the rows which measured them."""
