// Why is it as it is, and which ways are there out of it?

import { type Action, ACTION_SAYS, may, WISHES } from "../../actions.ts";
import { of } from "../../api-client.ts";
import { type Doing, useAsked, useNow } from "../../hooks.ts";
import { Command } from "../../parts/Command.tsx";
import { Button, Card, Waiting, When } from "../../parts/controls.tsx";
import { Icon, type IconName } from "../../parts/Icon.tsx";
import { outage, outageWords } from "../../outage.ts";
import { size } from "../../sizes.ts";
import { local } from "../../time.ts";
import type { Archive, Explanation, Me, Workspace } from "../../api-types.ts";
import { recover, remove, wish } from "../../commands.ts";

interface Props {
  workspace: Workspace;
  me: Me;
  asKey: string;
  doing: Doing;
  archives: Archive[];
}

export function Explained({ workspace, me, asKey, doing, archives }: Props) {
  const { said, wrong } = useAsked<Explanation>(`${of(workspace.id)}/explain`, asKey, 15_000);
  const inError = workspace.error?.is_terminal === true;
  return (
    <>
      {outage(workspace) && <Outage workspace={workspace} />}
      {workspace.error && <Trouble workspace={workspace} me={me} doing={doing} archives={archives} />}
      <Card title="What is going on?">
        {!said && (wrong ? <p class="dim">{wrong}</p> : <Waiting />)}
        {said && (
          <>
            <p class="summary">{said.summary}</p>
            <dl class="story">
              {said.lines.map((line) => {
                const [, head, rest] = /^([A-Z][a-z ]+): (.*)$/s.exec(line) ?? [null, "", line];
                return (
                  <div key={line}>
                    <dt>{head}</dt>
                    <dd>{local(rest, Date.now())}</dd>
                  </div>
                );
              })}
            </dl>
            {said.ways_out.length > 0 && (
              <details class="ways" open={inError}>
                <summary>The same with the command line</summary>
                <ul class="lines">
                  {said.ways_out.map((way) => (
                    <li key={way.command}>
                      <Command words={way.command} />
                      <span class="dim">{way.means}</span>
                    </li>
                  ))}
                </ul>
              </details>
            )}
          </>
        )}
      </Card>
    </>
  );
}

function Outage({ workspace }: { workspace: Workspace }) {
  const now = useNow();
  const since = outage(workspace)?.last_transition_time;
  return (
    <section class="card trouble" role="group" aria-labelledby="outage-title">
      <header class="card-head">
        <h2 id="outage-title">
          <Icon name="warning" /> Something that it needs cannot be reached
        </h2>
        {since && (
          <span class="dim">
            since <When at={since} now={now} />
          </span>
        )}
      </header>
      <p>{outageWords(workspace)}</p>
    </section>
  );
}

const INSTEAD: Partial<Record<Action, string>> = {
  start: "Another wish clears the error as well: run it.",
  stop: "Leave its program stopped, with its home at hand.",
  archive: "Put its home to sleep in the archive as it is.",
};

function Trouble({ workspace, me, doing, archives }: Omit<Props, "asKey">) {
  const { error } = workspace;
  if (!error) return null;
  const isUnmarked = error.reason === "MarkerUnreadable";
  const isLost = error.reason === "DataLost" || isUnmarked;
  const last = typeof error.context["last_lines"] === "string" ? error.context["last_lines"] : "";
  const mayRecover = may(workspace, me, "RECOVER") && error.is_terminal;
  const isGoing = workspace.deleted_at !== null;
  return (
    <section class="card trouble" role="group" aria-labelledby="trouble-title">
      <header class="card-head">
        <h2 id="trouble-title">
          <Icon name="warning" />{" "}
          {error.is_terminal ? "It needs a word from you" : "Something failed, and is tried again by itself"}
        </h2>
      </header>
      <p>
        <strong>{error.reason}</strong> in {error.operation}: {error.message}
      </p>
      {last && <pre class="last-lines">{last}</pre>}
      {mayRecover && (
        <ul class="ways-out" aria-label="Ways out">
          {!isLost && (
            <li>
              <Button
                weight="main"
                icon="recover"
                busy={doing.busy === "recover"}
                onClick={() => void doing.run("recover", () => recover(workspace))}
              >
                Try again
              </Button>
              <span>Forget the error and go on towards {workspace.desired_state}.</span>
            </li>
          )}
          {!isLost &&
            !isGoing &&
            WISHES[workspace.desired_state].map((action) => (
              <li key={action}>
                <Button
                  icon={action as IconName}
                  busy={doing.busy === action}
                  onClick={() => void doing.run(action, () => wish(workspace, action))}
                >
                  {ACTION_SAYS[action]} instead
                </Button>
                <span>{INSTEAD[action]}</span>
              </li>
            ))}
          {isUnmarked && !isGoing && (
            <li>
              <Button
                weight="main"
                icon="recover"
                busy={doing.busy === "accept"}
                onClick={() => void doing.run("accept", () => recover(workspace, { accept: true }))}
              >
                Go on with the home as it is
              </Button>
              <span>Its files stay as they are, and a new marker is written.</span>
            </li>
          )}
          {isLost &&
            archives.filter((one) => one.key !== workspace.error?.context["archive_key"]).map((one, at) => (
              <li key={one.key}>
                <Button
                  weight={at === 0 && !isUnmarked ? "main" : "plain"}
                  icon="archive"
                  busy={doing.busy === one.key}
                  onClick={() => void doing.run(one.key, () => recover(workspace, { archive_key: one.key }))}
                >
                  {at === 0 ? "Go on from the latest archive" : "Go on from an older archive"}
                </Button>
                <span>
                  {size(one.home_bytes)}, generation {one.generation}, opened {one.revision} times.
                </span>
              </li>
            ))}
          {isLost && (
            <li>
              <Button
                icon="home"
                busy={doing.busy === "empty"}
                onClick={() => void doing.run("empty", () => recover(workspace, { empty: true }))}
              >
                Go on with an empty home
              </Button>
              <span>What was in it is given up; its archives stay.</span>
            </li>
          )}
          {isGoing && may(workspace, me, "DELETE") && (
            <li>
              <Button
                danger
                icon="delete"
                busy={doing.busy === "purge"}
                onClick={() => void doing.run("purge", () => remove(workspace, true))}
              >
                Give up the home too
              </Button>
              <span>This cannot be taken back.</span>
            </li>
          )}
        </ul>
      )}
    </section>
  );
}
