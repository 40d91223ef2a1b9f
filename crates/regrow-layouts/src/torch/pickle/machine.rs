//! The stack machine: one pass over the opcodes. Each opcode adds at most one value.

use std::collections::HashMap;

use super::lines::{self, Number};
use super::opcodes::Op;
use super::{Call, Id, Pickle, Span, Value};
use regrow_base::bytes::Cursor;
use regrow_base::error::{Error, ErrorKind, Result};

const PROTOCOL_MAX: u8 = 5;

/// The most values on the stack. Python's picklers put at most a thousand items of a list or dict
/// there at once.
const STACK_LEN_MAX: usize = 1 << 19;

/// The most values of a pickle: ten for each of three million tensors.
const VALUES_MAX: usize = 1 << 25;

/// The longest name of a module or of its members.
const NAME_LEN_MAX_BYTES: usize = 1 << 10;

/// The longest pickle: positions in it have 32 bits.
const LEN_MAX_BYTES: usize = u32::MAX as usize;

/// The values that every machine starts with, so that each exists only once.
const NONE: Id = Id(0);
const FALSE: Id = Id(1);
const TRUE: Id = Id(2);

pub(super) fn run(bytes: &[u8]) -> Result<Pickle<'_>> {
    let bytes = bytes.get(..LEN_MAX_BYTES).unwrap_or(bytes);
    let mut machine = Machine {
        input: Cursor::new(bytes),
        op_at: 0,
        decoded: Vec::new(),
        values: vec![Value::None, Value::Bool(false), Value::Bool(true)],
        offsets: vec![0; 3],
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
    };
    let mut op_count = 0;
    loop {
        machine.op_at = machine.input.offset_bytes();
        op_count += 1;
        let byte = machine.input.u8("a pickle")?;
        let op = Op::of(byte).ok_or_else(|| {
            Error::corrupt(format!("byte {byte:#04x} is not an opcode of a pickle")).at_byte(machine.op_at)
        })?;
        if op == Op::Stop {
            break;
        }
        machine.step(op)?;
    }
    let root = machine.pop()?;
    let len_bytes = machine.input.offset_bytes() as usize;
    Ok(Pickle {
        bytes,
        decoded: machine.decoded,
        values: machine.values,
        offsets: machine.offsets,
        root,
        op_count,
        len_bytes,
    })
}

struct Machine<'a> {
    input: Cursor<'a>,
    op_at: u64,
    decoded: Vec<u8>,
    values: Vec<Value>,
    offsets: Vec<u32>,
    stack: Vec<Id>,
    /// The lengths of the stack at the marks.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

impl<'a> Machine<'a> {
    fn step(&mut self, op: Op) -> Result<()> {
        match op {
            Op::Proto => self.protocol(),
            Op::Frame => self.frame(),
            Op::Stop => Ok(()),
            Op::Mark => self.mark(),
            Op::Pop => self.pop().map(drop),
            Op::PopMark => self.pop_to_mark().map(drop),
            Op::Dup => self.top().and_then(|top| self.push(top)),
            Op::None => self.push(NONE),
            Op::True => self.push(TRUE),
            Op::False => self.push(FALSE),
            Op::Int32 => self.input.i32le("an integer").and_then(|number| self.int(number)),
            Op::Int8 => self.input.u8("an integer").and_then(|number| self.int(number)),
            Op::Int16 => {
                let number = u16::from_le_bytes(self.input.array("an integer")?);
                self.int(number)
            }
            Op::Long { len_bytes } => self.long(len_bytes),
            Op::Float => {
                let number = f64::from_be_bytes(self.input.array("a float")?);
                self.make(Value::Float(number))
            }
            Op::Text { len_bytes } => self.text(len_bytes),
            Op::OldText { len_bytes } => self.old_text(len_bytes),
            Op::Bytes { len_bytes } => {
                let (span, _) = self.bytes(len_bytes, "bytes")?;
                self.make(Value::Bytes(span))
            }
            Op::IntLine | Op::LongLine => self.int_line(),
            Op::FloatLine => self.float_line(),
            Op::TextLine => self.text_line(),
            Op::OldTextLine => self.old_text_line(),
            Op::GetLine => self.place_line().and_then(|at| self.get(at)),
            Op::PutLine => self.place_line().and_then(|at| self.remember(at)),
            Op::EmptyList => self.make(Value::List(Vec::new())),
            Op::EmptyTuple => self.make(Value::Tuple(Vec::new())),
            Op::EmptyDict => self.make(Value::Dict(Vec::new())),
            Op::EmptySet => self.make(Value::Set(Vec::new())),
            Op::List => self.gather(Value::List),
            Op::Tuple => self.gather(Value::Tuple),
            Op::FrozenSet => self.gather(Value::Set),
            Op::Dict => self.pairs().and_then(|pairs| self.make(Value::Dict(pairs))),
            Op::TupleOf { count } => self.tuple_of(count),
            Op::Append => self.pop().and_then(|item| self.append(vec![item])),
            Op::Appends | Op::AddItems => self.pop_to_mark().and_then(|items| self.append(items)),
            Op::SetItem => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set_items(vec![(key, value)])
            }
            Op::SetItems => self.pairs().and_then(|pairs| self.set_items(pairs)),
            Op::Get { len_bytes } => self.place(len_bytes).and_then(|at| self.get(at)),
            Op::Put { len_bytes } => self.place(len_bytes).and_then(|at| self.remember(at)),
            Op::Memoize => self.remember(self.memo.len() as u32),
            Op::Global => self.global(),
            Op::StackGlobal => self.stack_global(),
            Op::Reduce | Op::New => self.call(),
            // The keywords can be dropped: nothing is called, and no supported call has keywords.
            Op::NewWithKeywords => self.pop().and_then(|_| self.call()),
            Op::Build => self.set_state(),
            Op::Persistent => self.pop().and_then(|id| self.make(Value::Persistent(id))),
            Op::Refused(name) => {
                Err(Error::unsupported(format!("regrow does not read the pickle opcode {name}"))
                    .at_byte(self.op_at)
                    .help(
                        "torch.save and pickles of containers and arrays do not use it: save the file again",
                    ))
            }
        }
    }

    fn frame(&mut self) -> Result<()> {
        let len = self.input.u64le("the length of a frame")?;
        match len <= self.input.remaining_bytes() as u64 {
            true => Ok(()),
            false => Err(self
                .corrupt("a frame of a pickle is longer than the rest of the file")
                .expected(format_args!("at most {}", self.input.remaining_bytes()), len)),
        }
    }

    fn int(&mut self, number: impl Into<i64>) -> Result<()> {
        self.make(Value::Int(number.into()))
    }

    fn text(&mut self, len_bytes: usize) -> Result<()> {
        let (span, bytes) = self.bytes(len_bytes, "a text")?;
        match std::str::from_utf8(bytes) {
            Ok(_) => self.make(Value::Text(span)),
            Err(_) => Err(self.corrupt("a text of a pickle is not UTF-8")),
        }
    }

    fn old_text(&mut self, len_bytes: usize) -> Result<()> {
        let (span, bytes) = self.bytes(len_bytes, "a text")?;
        let is_text = std::str::from_utf8(bytes).is_ok();
        self.make(if is_text { Value::Text(span) } else { Value::Bytes(span) })
    }

    fn int_line(&mut self) -> Result<()> {
        let (_, line) = self.line_bytes("an integer", NAME_LEN_MAX_BYTES)?;
        match lines::number(line) {
            Some(Number::Bool(value)) => self.push(if value { TRUE } else { FALSE }),
            Some(Number::Int(number)) => self.make(Value::Int(number)),
            Some(Number::Long(bytes)) => {
                let span = self.keep(&bytes)?;
                self.make(Value::Long(span))
            }
            None => Err(self.corrupt("an integer of a pickle is not valid")),
        }
    }

    fn float_line(&mut self) -> Result<()> {
        let (_, line) = self.line_bytes("a float", NAME_LEN_MAX_BYTES)?;
        let number = std::str::from_utf8(line).ok().and_then(|line| line.trim().parse().ok());
        let number = number.ok_or_else(|| self.corrupt("a float of a pickle is not valid"))?;
        self.make(Value::Float(number))
    }

    fn text_line(&mut self) -> Result<()> {
        let (span, line) = self.line_bytes("a text", usize::MAX)?;
        if line.is_ascii() && !line.contains(&b'\\') {
            return self.make(Value::Text(span));
        }
        let text = lines::text(line);
        let text = text.ok_or_else(|| self.corrupt("a text of a pickle is not valid"))?;
        let span = self.keep(text.as_bytes())?;
        self.make(Value::Text(span))
    }

    fn old_text_line(&mut self) -> Result<()> {
        let (_, line) = self.line_bytes("a text", usize::MAX)?;
        let bytes = lines::old_text(line);
        let bytes = bytes.ok_or_else(|| self.corrupt("a text of a pickle is not valid"))?;
        let span = self.keep(&bytes)?;
        let is_text = std::str::from_utf8(&bytes).is_ok();
        self.make(if is_text { Value::Text(span) } else { Value::Bytes(span) })
    }

    fn tuple_of(&mut self, count: usize) -> Result<()> {
        let first = self.stack.len().checked_sub(count).filter(|&first| first >= self.floor());
        let first = first.ok_or_else(|| self.is_empty())?;
        let items = self.stack.split_off(first);
        self.make(Value::Tuple(items))
    }

    fn place(&mut self, len_bytes: usize) -> Result<u32> {
        Ok(self.len(len_bytes, "a place in the memo")? as u32)
    }

    fn global(&mut self) -> Result<()> {
        let module = self.line("the name of a module")?;
        let name = self.line("a name")?;
        self.make(Value::Global(module, name))
    }

    fn stack_global(&mut self) -> Result<()> {
        let (name, module) = (self.pop()?, self.pop()?);
        match (self.value(module), self.value(name)) {
            (Some(&Value::Text(module)), Some(&Value::Text(name))) => self.make(Value::Global(module, name)),
            _ => Err(self.corrupt("the name of an import is not text")),
        }
    }

    fn set_state(&mut self) -> Result<()> {
        let (state, target) = (self.pop()?, self.top()?);
        match self.value_mut(target) {
            Some(Value::Call(call)) => {
                call.state = Some(state);
                Ok(())
            }
            _ => Err(self.corrupt("a plain value of a pickle has a state")),
        }
    }

    fn protocol(&mut self) -> Result<()> {
        let protocol = self.input.u8("the protocol")?;
        match protocol <= PROTOCOL_MAX {
            true => Ok(()),
            false => Err(Error::unsupported(format!("protocol {protocol} of pickles is not known"))
                .at_byte(self.op_at)
                .expected(format_args!("at most {PROTOCOL_MAX}"), protocol)),
        }
    }

    fn long(&mut self, len_bytes: usize) -> Result<()> {
        let (span, bytes) = self.bytes(len_bytes, "an integer")?;
        let fill = if bytes.last().is_some_and(|&high| high & 0x80 != 0) { 0xff } else { 0 };
        if bytes.len() > size_of::<i64>() {
            return self.make(Value::Long(span));
        }
        let mut number = [fill; size_of::<i64>()];
        for (to, from) in number.iter_mut().zip(bytes) {
            *to = *from;
        }
        self.make(Value::Int(i64::from_le_bytes(number)))
    }

    fn call(&mut self) -> Result<()> {
        let (args, callee) = (self.pop()?, self.pop()?);
        if !matches!(self.value(args), Some(Value::Tuple(_))) {
            return Err(self.corrupt("the arguments of a call are not a tuple"));
        }
        self.make(Value::Call(Box::new(Call {
            callee,
            args,
            state: None,
            pairs: Vec::new(),
            items: Vec::new(),
        })))
    }

    fn append(&mut self, new: Vec<Id>) -> Result<()> {
        let target = self.top()?;
        match self.value_mut(target) {
            Some(Value::List(items) | Value::Set(items)) => items.extend(new),
            Some(Value::Call(call)) => call.items.extend(new),
            _ => return Err(self.corrupt("items are appended to a value that is not a list")),
        }
        Ok(())
    }

    fn set_items(&mut self, new: Vec<(Id, Id)>) -> Result<()> {
        let target = self.top()?;
        match self.value_mut(target) {
            Some(Value::Dict(pairs)) => pairs.extend(new),
            Some(Value::Call(call)) => call.pairs.extend(new),
            _ => return Err(self.corrupt("items are set in a value that is not a dict")),
        }
        Ok(())
    }

    fn gather(&mut self, to: impl FnOnce(Vec<Id>) -> Value) -> Result<()> {
        let items = self.pop_to_mark()?;
        self.make(to(items))
    }

    /// Pops keys and values down to the mark.
    fn pairs(&mut self) -> Result<Vec<(Id, Id)>> {
        let items = self.pop_to_mark()?;
        let (pairs, odd) = items.as_chunks::<2>();
        match odd.is_empty() {
            true => Ok(pairs.iter().map(|&[key, value]| (key, value)).collect()),
            false => Err(self.corrupt("a key of a dict has no value")),
        }
    }

    fn get(&mut self, at: u32) -> Result<()> {
        let id = self.memo.get(&at).copied();
        let id = id.ok_or_else(|| self.corrupt(format!("place {at} of the memo is empty")))?;
        self.push(id)
    }

    fn place_line(&mut self) -> Result<u32> {
        let (_, line) = self.line_bytes("a place in the memo", NAME_LEN_MAX_BYTES)?;
        let at = std::str::from_utf8(line).ok().and_then(|line| line.parse().ok());
        at.ok_or_else(|| self.corrupt("a position in the memo is not a number"))
    }

    /// Stores decoded bytes, which the pickle has in another form.
    fn keep(&mut self, bytes: &[u8]) -> Result<Span> {
        let start = self.decoded.len() as u32;
        self.decoded.extend_from_slice(bytes);
        if self.decoded.len() > LEN_MAX_BYTES {
            return Err(self.limit("the texts of a pickle are too long together".to_owned()));
        }
        Ok(Span { start, len_bytes: bytes.len() as u32, is_decoded: true })
    }

    fn remember(&mut self, at: u32) -> Result<()> {
        let top = self.top()?;
        self.memo.insert(at, top);
        Ok(())
    }

    /// Reads a length of `len_bytes` bytes, and then this number of bytes.
    fn bytes(&mut self, len_bytes: usize, what: &str) -> Result<(Span, &'a [u8])> {
        let len = self.len(len_bytes, what)?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let start = self.input.offset_bytes() as u32;
        let bytes = self.input.take(len, what)?;
        Ok((Span { start, len_bytes: len as u32, is_decoded: false }, bytes))
    }

    fn len(&mut self, len_bytes: usize, what: &str) -> Result<u64> {
        let mut number = [0; size_of::<u64>()];
        for (to, from) in number.iter_mut().zip(self.input.take(len_bytes, what)?) {
            *to = *from;
        }
        Ok(u64::from_le_bytes(number))
    }

    fn line(&mut self, what: &str) -> Result<Span> {
        let (span, line) = self.line_bytes(what, NAME_LEN_MAX_BYTES)?;
        match std::str::from_utf8(line) {
            Ok(_) => Ok(span),
            Err(_) => Err(self.corrupt(format!("{what} is not UTF-8"))),
        }
    }

    fn line_bytes(&mut self, what: &str, len_max_bytes: usize) -> Result<(Span, &'a [u8])> {
        let near = self.input.rest().get(..len_max_bytes).unwrap_or(self.input.rest());
        let Some(len) = near.iter().position(|&byte| byte == b'\n') else {
            return Err(self.corrupt(format!("{what} does not end within {} bytes", near.len())));
        };
        let start = self.input.offset_bytes() as u32;
        let line = self.input.take(len, what)?;
        self.input.take(1, what)?;
        Ok((Span { start, len_bytes: len as u32, is_decoded: false }, line))
    }

    fn make(&mut self, value: Value) -> Result<()> {
        if self.values.len() >= VALUES_MAX {
            return Err(self.limit(format!("a pickle has more than {VALUES_MAX} values")));
        }
        self.values.push(value);
        self.offsets.push(self.op_at as u32);
        self.push(Id(self.values.len() as u32 - 1))
    }

    fn push(&mut self, id: Id) -> Result<()> {
        if self.stack.len() >= STACK_LEN_MAX {
            return Err(self.limit(format!("a pickle puts more than {STACK_LEN_MAX} values on its stack")));
        }
        self.stack.push(id);
        Ok(())
    }

    fn mark(&mut self) -> Result<()> {
        if self.marks.len() >= STACK_LEN_MAX {
            return Err(self.limit(format!("a pickle sets more than {STACK_LEN_MAX} marks")));
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    /// The stack length at the last mark. Opcodes must not take values below it.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or_default()
    }

    fn pop(&mut self) -> Result<Id> {
        let is_there = self.stack.len() > self.floor();
        self.stack.pop().filter(|_| is_there).ok_or_else(|| self.is_empty())
    }

    fn top(&self) -> Result<Id> {
        let top = self.stack.last().copied().filter(|_| self.stack.len() > self.floor());
        top.ok_or_else(|| self.is_empty())
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Id>> {
        let mark = self.marks.pop().filter(|&mark| mark <= self.stack.len());
        let mark = mark.ok_or_else(|| self.corrupt("a pickle uses a mark that it did not set"))?;
        Ok(self.stack.split_off(mark))
    }

    fn value(&self, id: Id) -> Option<&Value> {
        self.values.get(id.0 as usize)
    }

    fn value_mut(&mut self, id: Id) -> Option<&mut Value> {
        self.values.get_mut(id.0 as usize)
    }

    fn is_empty(&self) -> Error {
        self.corrupt("a pickle takes a value from an empty stack")
    }

    fn corrupt(&self, what: impl Into<String>) -> Error {
        Error::corrupt(what).at_byte(self.op_at)
    }

    fn limit(&self, what: String) -> Error {
        Error::new(ErrorKind::Limit, what).at_byte(self.op_at)
    }
}
