//! Rules of the source itself.
//!
//! | file | rule |
//! |---|---|
//! | `bounds` | `docs/bounds.md` lists every bound and every place of unsafe code |
//! | `file_names` | each file name of a layout is once in the code; the engine makes locations with `located` |
//! | `functions` | a function has at most 70 lines and 20 conditions |
//! | `imports` | modules of one folder do not import each other |
//! | `layout_names` | the engine names no layout |
//! | `platforms` | one module asks for the operating system |
//! | `public_api` | the public items equal `public_api.txt` |
//! | `traits` | a trait has few methods, and no default that is an error |

mod bounds;
mod file_names;
mod functions;
mod imports;
mod layout_names;
mod platforms;
mod public_api;
mod traits;
