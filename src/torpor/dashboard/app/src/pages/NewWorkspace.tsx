// The dialog that creates a workspace.

import { useRef, useState } from "preact/hooks";
import { splitCommand } from "../command-line.ts";
import { useRequest, usePendingAction } from "../hooks.ts";
import { Field, TextField, Placeholder } from "../parts/controls.tsx";
import { Dialog } from "../parts/Dialog.tsx";
import { Icon } from "../parts/Icon.tsx";
import type { Template, Workspace } from "../api-types.ts";
import { create } from "../commands.ts";

export function NewWorkspace({ onClose, onCreated }: { onClose: () => void; onCreated: (made: Workspace) => void }) {
  const { data, error } = useRequest<{ items: Template[] }>("/templates");
  const [name, setName] = useState("");
  const [chosen, setChosen] = useState("");
  const [image, setImage] = useState("");
  const [command, setCommand] = useState("");
  const pending = usePendingAction();
  const sent = useRef({ request: "", key: "" });
  const templates = data?.items ?? [];
  const template = templates.find((one) => one.name === chosen) ?? templates[0];
  const make = (): Promise<boolean> =>
    pending.run("create", async () => {
      if (!template) return;
      const wanted = {
        name,
        template: template.name,
        ...(template.takes_image ? { image: image.trim() } : {}),
        ...(template.takes_command ? { command: splitCommand(command) } : {}),
      };
      const request = JSON.stringify(wanted);
      // The same request after a lost response has the same key; another request gets a new one.
      if (sent.current.request !== request)
        sent.current = { request, key: crypto.getRandomValues(new Uint32Array(4)).join("-") };
      onCreated(await create(wanted, sent.current.key));
    });
  return (
    <Dialog
      title="New workspace"
      confirm="Create"
      busy={pending.busy !== ""}
      error={pending.error || error}
      wide
      onConfirm={() => void make()}
      onClose={onClose}
    >
      <TextField
        label="Name"
        hint="a–z, 0–9 and -, at most 40 characters. The name is part of the address."
        value={name}
        onValue={setName}
        required
        maxLength={40}
        autocomplete="off"
        pattern="[a-z0-9]([a-z0-9\-]{0,38}[a-z0-9])?"
        title="a to z, 0 to 9 and -, at most 40 characters"
      />
      <fieldset class="templates">
        <legend>Template</legend>
        {templates.length === 0 && <Placeholder />}
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
      {template?.takes_image && (
        <TextField
          label="Image"
          hint="A reference such as python:3.12 or registry.example.com/team/app:1."
          value={image}
          onValue={setImage}
          required
          autocomplete="off"
        />
      )}
      {template?.takes_command && (
        <Field
          label="Command"
          hint="The program must listen on $PORT. Quotes keep words together. Variables need a shell: sh -c '…'"
          wide
        >
          {({ id, describedBy }) => (
            <input
              id={id}
              class="mono"
              aria-describedby={describedBy}
              value={command}
              required={template.needs_command}
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
