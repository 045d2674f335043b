"""One module a published list: a pure function from the bytes of its documents to rows."""
