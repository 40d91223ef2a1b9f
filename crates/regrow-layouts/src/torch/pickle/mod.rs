//! Pickles as plain values: nothing is imported, and nothing is called.
//!
//! ```text
//! 80 02  7d  58 01000000 'w'  63 'torch._utils\n_rebuild_tensor_v2\n'  28 ... 74  52  73  2e
//! PROTO  DICT  TEXT           GLOBAL                                   MARK  TUPLE REDUCE SETITEM STOP
//! ```
//!
//! A pickle is a program for a stack machine, and a REDUCE would call any function that a GLOBAL
//! names. Here both are data: a [`Value::Global`] is a name, and a [`Value::Call`] is the record of
//! a requested call, with its arguments. The reader of the values accepts a few names, and refuses
//! all others.
//!
//! | module | holds |
//! |---|---|
//! | `opcodes` | bytes to opcodes |
//! | `lines` | numbers and texts of protocol 0, each on a line |
//! | `machine` | the stack, the marks and the memo |
//! | `mod` | the resulting values |
//!
//! Every value is stored once in one list, and containers have positions in this list. A pickle may
//! make a value that contains itself, or that contains another value a million times. In both cases
//! the memory is proportional to the length of the pickle. Texts and bytes are not copied, except
//! values of protocol 0, which are decoded. Source: CPython `Lib/pickle.py`, `Lib/pickletools.py`.

use regrow_base::error::{Error, Result};

mod lines;
mod machine;
mod opcodes;
#[cfg(test)]
mod tests;

/// Whether a pickle may begin with this byte.
pub(crate) fn is_opcode(byte: u8) -> bool {
    opcodes::Op::of(byte).is_some_and(|op| !matches!(op, opcodes::Op::Refused(_)))
}

/// The position of a value among those of its pickle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Id(u32);

/// A range of the pickle's bytes, or of the decoded texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Span {
    start: u32,
    len_bytes: u32,
    is_decoded: bool,
}

impl Span {
    /// The range within the bytes that the pickle was read from; `None` if it was decoded.
    pub(crate) fn range(self) -> Option<std::ops::Range<usize>> {
        (!self.is_decoded).then_some(self.both())
    }

    fn both(self) -> std::ops::Range<usize> {
        self.start as usize..(self.start as usize).saturating_add(self.len_bytes as usize)
    }
}

/// A value.
#[derive(Debug)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// An integer beyond 64 bits: two's complement, little endian.
    Long(Span),
    Float(f64),
    /// A text in UTF-8.
    Text(Span),
    Bytes(Span),
    List(Vec<Id>),
    Tuple(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Set(Vec<Id>),
    /// A name to import, with its module.
    Global(Span, Span),
    Call(Box<Call>),
    /// A reference that only the program that wrote the pickle can resolve, such as a storage.
    Persistent(Id),
}

/// A requested call, and the operations on its result. None of them is run.
#[derive(Debug)]
pub(crate) struct Call {
    pub callee: Id,
    /// The arguments: a tuple.
    pub args: Id,
    /// The argument for `__setstate__`.
    pub state: Option<Id>,
    pub pairs: Vec<(Id, Id)>,
    pub items: Vec<Id>,
}

/// The values of a pickle.
#[derive(Debug)]
pub(crate) struct Pickle<'a> {
    bytes: &'a [u8],
    /// Texts of protocol 0, without their escapes.
    decoded: Vec<u8>,
    values: Vec<Value>,
    /// The offset of each value's opcode.
    offsets: Vec<u32>,
    root: Id,
    op_count: u64,
    len_bytes: usize,
}

impl<'a> Pickle<'a> {
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Self> {
        machine::run(bytes)
    }

    pub(crate) fn root(&self) -> Id {
        self.root
    }

    /// Length of the pickle. Other bytes may follow.
    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    pub(crate) fn op_count(&self) -> u64 {
        self.op_count
    }

    pub(crate) fn value(&self, id: Id) -> &Value {
        self.values.get(id.0 as usize).unwrap_or(&Value::None)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = (Id, &Value)> {
        self.values.iter().enumerate().map(|(at, value)| (Id(at as u32), value))
    }

    pub(crate) fn offset(&self, id: Id) -> u64 {
        self.offsets.get(id.0 as usize).copied().unwrap_or_default().into()
    }

    pub(crate) fn span(&self, span: Span) -> &[u8] {
        let from = if span.is_decoded { self.decoded.as_slice() } else { self.bytes };
        from.get(span.both()).unwrap_or_default()
    }

    pub(crate) fn opcode(&self, id: Id) -> Option<u8> {
        self.bytes.get(self.offset(id) as usize).copied()
    }

    /// A text, or the name of a global.
    pub(crate) fn text_of(&self, span: Span) -> &str {
        // The machine has checked that every text is UTF-8.
        std::str::from_utf8(self.span(span)).unwrap_or_default()
    }

    pub(crate) fn text(&self, id: Id) -> Option<&str> {
        match self.value(id) {
            Value::Text(span) => Some(self.text_of(*span)),
            _ => None,
        }
    }

    pub(crate) fn int(&self, id: Id) -> Option<i64> {
        match self.value(id) {
            Value::Int(number) => Some(*number),
            _ => None,
        }
    }

    pub(crate) fn sequence(&self, id: Id) -> Option<&[Id]> {
        match self.value(id) {
            Value::Tuple(items) | Value::List(items) => Some(items),
            _ => None,
        }
    }

    pub(crate) fn global(&self, id: Id) -> Option<(&str, &str)> {
        match self.value(id) {
            Value::Global(module, name) => Some((self.text_of(*module), self.text_of(*name))),
            _ => None,
        }
    }

    /// A call with the module and name of its function, and its arguments; `None` for other values.
    pub(crate) fn call(&self, id: Id) -> Option<(&Call, (&str, &str), &[Id])> {
        let Value::Call(call) = self.value(id) else { return None };
        Some((call, self.global(call.callee)?, self.sequence(call.args)?))
    }

    pub(crate) fn corrupt(&self, id: Id, what: impl Into<String>) -> Error {
        Error::corrupt(what).at_byte(self.offset(id))
    }

    pub(crate) fn unsupported(&self, id: Id, what: impl Into<String>) -> Error {
        Error::unsupported(what).at_byte(self.offset(id))
    }
}
