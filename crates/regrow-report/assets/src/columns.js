// Columns of the page: zlib, base64, and the bytes of numbers plane by plane (first the lowest byte of every number).

const ARRAYS = { u8: Uint8Array, u32: Uint32Array, f64: Float64Array };

/** The bytes behind base64. */
function decode(text) {
  const binary = atob(text);
  const out = new Uint8Array(binary.length);
  for (let at = 0; at < out.length; at += 1) out[at] = binary.charCodeAt(at);
  return out;
}

async function inflate(compressed) {
  const stream = new Blob([compressed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

/** Numbers from planes of their bytes. */
function join(planes, kind, count) {
  const Kind = ARRAYS[kind];
  const size = Kind.BYTES_PER_ELEMENT;
  if (planes.length !== count * size) throw new Error(`a column has ${planes.length} bytes instead of ${count * size}`);
  if (size === 1) return planes;
  const out = new Uint8Array(planes.length);
  for (let plane = 0; plane < size; plane += 1) {
    for (let row = 0, from = plane * count, to = plane; row < count; row += 1, from += 1, to += size) out[to] = planes[from];
  }
  return new Kind(out.buffer);
}

/** All columns of the page by name, each decoded when it is first asked for. */
export class Columns {
  constructor(root) {
    this.elements = new Map();
    this.decoded = new Map();
    for (const element of root.querySelectorAll("script[data-column]")) this.elements.set(element.dataset.column, element);
  }

  has(name) {
    return this.elements.has(name);
  }

  /** A promise of typed numbers, or of a list of texts. */
  get(name) {
    if (!this.decoded.has(name)) this.decoded.set(name, this.#decode(name));
    return this.decoded.get(name);
  }

  /** Several columns below one prefix, as an object. */
  async all(prefix, names) {
    const values = await Promise.all(names.map((name) => this.get(`${prefix}.${name}`)));
    return Object.fromEntries(names.map((name, at) => [name, values[at]]));
  }

  async #decode(name) {
    const element = this.elements.get(name);
    if (!element) throw new Error(`the page has no column ${name}`);
    const { kind, count } = element.dataset;
    const data = await inflate(decode(element.textContent));
    element.textContent = "";
    return kind === "texts" ? JSON.parse(new TextDecoder().decode(data)) : join(new Uint8Array(data), kind, Number(count));
  }
}
