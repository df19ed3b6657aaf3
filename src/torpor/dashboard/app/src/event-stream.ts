// Which events are in a piece of a text/event-stream?

export interface ServerEvent {
  id: string;
  event: string;
  data: string;
}

/** Takes pieces as they come, wherever they were cut; gives each event once it is whole. */
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
