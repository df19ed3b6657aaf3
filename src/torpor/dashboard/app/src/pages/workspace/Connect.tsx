// The ways to connect to a workspace: address, ports, shell and command line.

import { useState } from "preact/hooks";
import { may } from "../../actions.ts";
import type { Me, Workspace } from "../../api-types.ts";
import { Link } from "../../navigation.tsx";
import { OpenLink } from "../../parts/ActionButtons.tsx";
import { Command } from "../../parts/Command.tsx";
import { Button, Card, Copyable } from "../../parts/controls.tsx";
import { Icon } from "../../parts/Icon.tsx";

export function Connect({ workspace, me }: { workspace: Workspace; me: Me }) {
  const { name, phase, url } = workspace;
  const isRunning = phase === "RUNNING";
  return (
    <Card title="Connect" kind="connect">
      <dl class="connections">
        <dt>Address</dt>
        <dd>
          <Copyable text={url} label="the address" />
          <OpenLink workspace={workspace} />
        </dd>
        <dt>
          <label for="port">Port</label>
        </dt>
        <dd>
          <Port workspace={workspace} />
        </dd>
        {may(workspace, me, "RUN") && (
          <>
            <dt>Shell</dt>
            <dd>
              {isRunning ? (
                <>
                  <span class="dim">A shell in your browser</span>
                  <Link class="button plain" to={{ page: "shell", name }}>
                    <Icon name="shell" />
                    <span>Shell</span>
                  </Link>
                </>
              ) : (
                <span class="dim">Available when the workspace is running</span>
              )}
            </dd>
            <dt>Command line</dt>
            <dd>
              <Command words={`torpor shell ${name}`} />
            </dd>
          </>
        )}
      </dl>
    </Card>
  );
}

/** Each port of a workspace has its own host name. */
function Port({ workspace }: { workspace: Workspace }) {
  const [port, setPort] = useState("");
  const number = Number(port);
  const isPort = /^[0-9]+$/.test(port) && number >= 1 && number <= 65535;
  const open = (event: Event): void => {
    event.preventDefault();
    if (!isPort) return;
    const target = new URL(workspace.url);
    target.hostname = `${number}--${target.hostname}`;
    window.open(target, "_blank", "noopener");
  };
  return (
    <form class="port" onSubmit={open}>
      <input
        id="port"
        inputMode="numeric"
        placeholder="5173"
        value={port}
        onInput={(event) => setPort(event.currentTarget.value.trim())}
      />
      <Button type="submit" icon="open" label="Open port" disabled={!isPort}>
        Open
      </Button>
    </form>
  );
}
