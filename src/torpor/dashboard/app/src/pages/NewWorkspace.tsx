// What should a new workspace be?

import { useRef, useState } from "preact/hooks";
import { words } from "../command-line.ts";
import { useAsked, useDoing } from "../hooks.ts";
import { Field, TextField, Waiting } from "../parts/controls.tsx";
import { Dialog } from "../parts/Dialog.tsx";
import { Icon } from "../parts/Icon.tsx";
import type { Template, Workspace } from "../api-types.ts";
import { create } from "../commands.ts";

export function NewWorkspace({ onClose, onMade }: { onClose: () => void; onMade: (made: Workspace) => void }) {
  const { said, wrong } = useAsked<{ items: Template[] }>("/templates");
  const [name, setName] = useState("");
  const [chosen, setChosen] = useState("");
  const [command, setCommand] = useState("");
  const doing = useDoing();
  const asked = useRef({ request: "", key: "" });
  const templates = said?.items ?? [];
  const template = templates.find((one) => one.name === chosen) ?? templates[0];
  const make = (): Promise<boolean> =>
    doing.run("create", async () => {
      if (!template) return;
      const wanted = { name, template: template.name, ...(template.takes_command ? { command: words(command) } : {}) };
      const request = JSON.stringify(wanted);
      // The same asked again, after an answer that was lost, is the same creation; anything else is another.
      if (asked.current.request !== request)
        asked.current = { request, key: crypto.getRandomValues(new Uint32Array(4)).join("-") };
      onMade(await create(wanted, asked.current.key));
    });
  return (
    <Dialog
      title="New workspace"
      confirm="Create"
      busy={doing.busy !== ""}
      wrong={doing.wrong || wrong}
      wide
      onConfirm={() => void make()}
      onClose={onClose}
    >
      <TextField
        label="Name"
        hint="a–z, 0–9 and -; it becomes part of its address"
        value={name}
        onValue={setName}
        required
        maxLength={40}
        autocomplete="off"
        pattern="[a-z0-9]([a-z0-9\-]{0,38}[a-z0-9])?"
        title="a to z, 0 to 9 and -, at most 40"
      />
      <fieldset class="templates">
        <legend>Template</legend>
        {templates.length === 0 && <Waiting />}
        {templates.map((one) => (
          <label key={one.name} class="template">
            <input
              type="radio"
              name="template"
              value={one.name}
              checked={one === template}
              onChange={() => setChosen(one.name)}
            />
            <span>
              <strong>{one.title}</strong>
              <small>{one.description}</small>
            </span>
          </label>
        ))}
      </fieldset>
      {template?.warnings.map((warning) => (
        <p key={warning} class="wrong-words">
          <Icon name="warning" /> {warning}
        </p>
      ))}
      {template?.takes_command && (
        <Field
          label="Command"
          hint="A program that listens on $PORT. Quotes keep words together; only a shell (sh -c '…') fills in variables."
          wide
        >
          {({ id, describedBy }) => (
            <input
              id={id}
              class="mono"
              aria-describedby={describedBy}
              value={command}
              required
              autocomplete="off"
              autocapitalize="none"
              spellcheck={false}
              placeholder="sh -c 'python3 -m http.server $PORT'"
              onInput={(event) => setCommand(event.currentTarget.value)}
            />
          )}
        </Field>
      )}
    </Dialog>
  );
}
