// Explain the status of a workspace.

import type { Explanation as ExplanationData } from "../../api-types.ts";
import { Card, Placeholder } from "../../parts/controls.tsx";
import { local } from "../../time.ts";

export function Explanation({ data, error }: { data: ExplanationData | null; error: string }) {
  return (
    <Card title="Explanation">
      {!data && (error ? <p class="dim">{error}</p> : <Placeholder />)}
      {data && (
        <>
          <p class="summary">{data.summary}</p>
          <dl class="story">
            {data.lines.map((line) => {
              const [, head, rest] = /^([A-Z][a-z ]+): (.*)$/s.exec(line) ?? [null, "", line];
              return (
                <div key={line}>
                  <dt>{head}</dt>
                  <dd>{local(rest, Date.now())}</dd>
                </div>
              );
            })}
          </dl>
        </>
      )}
    </Card>
  );
}
