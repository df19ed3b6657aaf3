// Parse a text/event-stream.

export interface ServerEvent {
  id: string;
  event: string;
  data: string;
}

/** Returns a function that takes the next chunk, cut anywhere, and returns the events that are complete. */
export function reader(): (piece: string) => ServerEvent[] {
  let rest = "";
  let id = "";
  let event = "";
  let data: string[] = [];
  return (piece) => {
    const found: ServerEvent[] = [];
    const lines = (rest + piece).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line === "") {
        if (data.length > 0) found.push({ id, event: event || "message", data: data.join("\n") });
        event = "";
        data = [];
        continue;
      }
      const [, field, value = ""] = /^([^:]*)(?:: ?(.*))?$/s.exec(line) ?? [];
      if (field === "data") data.push(value);
      else if (field === "event") event = value;
      else if (field === "id") id = value;
    }
    return found;
  };
}
