// A layer whose folder has no source yet, and the aggregate libraries, need one file to compile.
