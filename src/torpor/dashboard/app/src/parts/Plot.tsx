// A small plot of a value over time.

import { type PlotPoint, plotMaximum, plotShape, rangeText } from "../plot.ts";

const WIDTH = 240;
const HEIGHT = 56;

interface Props {
  title: string;
  points: readonly PlotPoint[];
  /** The time range of the plot. */
  begin: number;
  end: number;
  /** The scale of the axis is a multiple of this value. */
  unit: number;
  /** A longer time without a point interrupts the line. */
  gapMs: number;
  format: (value: number) => string;
}

export function Plot({ title, points, begin, end, unit, gapMs, format }: Props) {
  const maximum = plotMaximum(points, unit);
  const { line, area } = plotShape(points, { begin, end, maximum, width: WIDTH, height: HEIGHT, gapMs });
  const last = points.at(-1);
  const range = rangeText((end - begin) / 1000);
  const text = last ? `${title}: ${format(last.value)}; at most ${format(Math.max(...points.map((one) => one.value)))}, ${range}` : `${title}: no data`;
  return (
    <figure class="plot" data-plot={title} data-points={points.length}>
      <figcaption>
        <span class="dim">{title}</span>
        <strong>{last ? format(last.value) : "–"}</strong>
      </figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={text}>
        <title>{text}</title>
        <path class="area" d={area} />
        <path class="line" d={line} />
      </svg>
      <p class="axis">
        <span>{range}</span>
        <span>{last ? `max ${format(maximum)}` : "no data"}</span>
      </p>
    </figure>
  );
}
