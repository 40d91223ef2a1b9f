//! regrow's Python extension: arguments in, core types through, views out.
