"use strict";
// Tools of the form, each as rows of parameters or as a JSON schema.

const at = id => document.getElementById(id);

/** An error that belongs to one control of the form, or to none. */
class Fault extends Error {
  constructor(control, message) {
    super(message);
    this.control = control;
  }
}

/** The value of a control's JSON text, with the places of its parts. Throws a `Fault` with the line. */
function jsonIn(control, what) {
  try {
    return readJson(control.value);
  } catch (error) {
    if (!(error instanceof JsonError)) throw error;
    const {line, column} = placeOf(control.value, error.offset);
    throw Object.assign(new Fault(control, `${what} is not JSON: line ${line}, column ${column}. ${error.message}`), {line});
  }
}

/** One tool of the form. */
class ToolForm {
  /** `changed` is called after a change that is no event of a control, `removed` with a tool that has been removed. */
  constructor({name, description, parameters}, changed, removed) {
    this.field = at("tool").content.cloneNode(true).firstElementChild;
    this.part(".name").value = name;
    this.part(".about").value = description ?? "";
    this.part(".more").onclick = () => {
      this.addRow({name: "", type: "text", required: true});
      [...this.field.querySelectorAll(".key")].at(-1).focus();
      changed();
    };
    this.part(".raw").onchange = () => this.turn();
    this.part(".remove").onclick = () => {
      this.field.remove();
      removed(this);
    };
    this.changed = changed;
    const rows = rowsOf(parameters);
    for (const row of rows ?? []) this.addRow(row);
    if (!rows) this.showSchema(parameters);
  }

  part(selector) { return this.field.querySelector(selector); }

  addRow({name, type, required}) {
    const row = at("parameter").content.cloneNode(true).firstElementChild;
    row.querySelector(".type").append(...Object.keys(TYPES).map(one => new Option(one)));
    row.querySelector(".key").value = name;
    row.querySelector(".type").value = type;
    row.querySelector(".required").checked = required;
    row.querySelector(".less").onclick = () => {
      row.remove();
      this.part(".more").focus();
      this.changed();
    };
    this.part(".rows").append(row);
  }

  showSchema(schema) {
    this.part(".schema textarea").value = JSON.stringify(schema, null, 2);
    this.show(true);
  }

  show(raw) {
    this.part(".raw").checked = raw;
    this.part(".schema").hidden = !raw;
    this.part(".rows").hidden = this.part(".more").hidden = raw;
  }

  /** Turns from rows to a schema, or back where rows can express it. Otherwise it stays as it is. */
  turn() {
    const raw = this.part(".raw").checked;
    try {
      this.part(".raw").checked = !raw;
      const schema = this.read().parameters, rows = rowsOf(schema);
      if (raw) return this.showSchema(schema);
      if (!rows) throw new Fault(this.part(".schema textarea"), "Rows cannot express this schema, so it stays JSON.");
      this.part(".rows").replaceChildren();
      for (const row of rows) this.addRow(row);
      this.show(false);
    } catch (fault) {
      if (!(fault instanceof Fault)) throw fault;
      showFault(fault);
    }
  }

  /** The tool; throws a `Fault`. */
  read() {
    const name = this.part(".name").value.trim(), description = this.part(".about").value;
    if (!name) throw new Fault(this.part(".name"), "The tool has no name.");
    const raw = this.part(".raw").checked;
    const parameters = raw ? jsonIn(this.part(".schema textarea"), "The tool's schema").value : this.readRows();
    return {name, ...(description && {description}), parameters};
  }

  readRows() {
    const names = new Set();
    return schemaOf([...this.field.querySelectorAll(".parameter")].map(row => {
      const key = row.querySelector(".key"), name = key.value;
      if (!name || names.has(name)) throw new Fault(key, name ? `There are two parameters ${name}.` : "The parameter has no name.");
      names.add(name);
      return {name, type: row.querySelector(".type").value, required: row.querySelector(".required").checked};
    }));
  }
}
