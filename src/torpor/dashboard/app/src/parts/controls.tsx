// Buttons, fields and other small parts.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { Icon, type IconName } from "./Icon.tsx";
import { ago, ahead, exactly } from "../time.ts";

export type Weight = "main" | "strong" | "plain" | "quiet";

interface ButtonProps {
  children?: ComponentChildren;
  icon?: IconName;
  weight?: Weight;
  danger?: boolean;
  busy?: boolean;
  disabled?: boolean;
  type?: "button" | "submit";
  label?: string;
  pressed?: boolean;
  onClick?: (event: MouseEvent) => void;
  "data-action"?: string;
}

export function Button({
  children,
  icon,
  weight = "plain",
  danger,
  busy,
  disabled,
  type = "button",
  label,
  pressed,
  ...rest
}: ButtonProps) {
  return (
    <button
      type={type}
      class={`button ${weight}${danger ? " danger" : ""}${children ? "" : " only-icon"}`}
      aria-label={label}
      title={children ? undefined : label}
      aria-busy={busy || undefined}
      aria-pressed={pressed}
      disabled={disabled || busy}
      {...rest}
    >
      {icon && <Icon name={icon} />}
      {children && <span>{children}</span>}
    </button>
  );
}

/** An error message beside the action that failed. */
export function ErrorMessage({ children, onClose }: { children: string; onClose?: () => void }) {
  if (!children) return null;
  return (
    <div class="wrong" role="alert">
      <Icon name="warning" />
      <p>{children}</p>
      {onClose && <Button icon="close" weight="quiet" label="Dismiss" onClick={onClose} />}
    </div>
  );
}

interface FieldProps {
  label: string;
  hint?: ComponentChildren;
  wide?: boolean;
  children: (ids: { id: string; describedBy: string | undefined }) => JSX.Element;
}

export function Field({ label, hint, wide, children }: FieldProps) {
  const id = useId();
  return (
    <div class={wide ? "field wide" : "field"}>
      <label for={id}>{label}</label>
      {children({ id, describedBy: hint ? `${id}-hint` : undefined })}
      {hint && (
        <p id={`${id}-hint`} class="hint">
          {hint}
        </p>
      )}
    </div>
  );
}

interface TextProps extends Omit<FieldProps, "children"> {
  value: string;
  onValue: (value: string) => void;
  /** Whether the field gets the focus when it appears. */
  focus?: boolean;
  secret?: boolean;
  required?: boolean;
  maxLength?: number;
  pattern?: string;
  title?: string;
  placeholder?: string;
  autocomplete?: "off" | "username" | "current-password" | "new-password";
  inputMode?: "numeric";
}

export function TextField({ label, hint, wide, value, onValue, focus, secret, ...rest }: TextProps) {
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (focus) input.current?.focus();
  }, [focus]);
  return (
    <Field label={label} hint={hint} wide={wide ?? false}>
      {({ id, describedBy }) => {
        const common = {
          ref: input,
          id,
          "aria-describedby": describedBy,
          value,
          onInput: (event: Event) => onValue((event.currentTarget as HTMLInputElement).value),
          autocapitalize: "none" as const,
          spellcheck: false,
          ...rest,
        };
        return secret ? <input type="password" {...common} /> : <input type="text" {...common} />;
      }}
    </Field>
  );
}

interface ChoiceProps<Value extends string> {
  label: string;
  hint?: ComponentChildren;
  value: Value;
  onValue: (value: Value) => void;
  options: readonly (readonly [Value, string])[];
  bare?: boolean;
}

export function Choice<Value extends string>({ label, hint, value, onValue, options, bare }: ChoiceProps<Value>) {
  const select = (id: string | undefined, describedBy: string | undefined) => (
    <select
      id={id}
      aria-label={bare ? label : undefined}
      aria-describedby={describedBy}
      value={value}
      onChange={(event) => onValue(event.currentTarget.value as Value)}
    >
      {options.map(([name, label]) => (
        <option key={name} value={name} selected={name === value}>
          {label}
        </option>
      ))}
    </select>
  );
  if (bare) return select(undefined, undefined);
  return (
    <Field label={label} hint={hint}>
      {({ id, describedBy }) => select(id, describedBy)}
    </Field>
  );
}

/** A text with a button that copies it. */
interface CopyableProps {
  text: string;
  label: string;
  /** What is shown instead of a long text. */
  short?: string;
  secret?: boolean;
}

export function Copyable({ text, label, short, secret }: CopyableProps) {
  const [copied, setCopied] = useState(false);
  const shown = useRef<HTMLElement>(null);
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(text);
      setCopied(true);
      setTimeout(() => setCopied(false), 1600);
    } catch {
      // Without permission for the clipboard the text is selected, so that the keyboard can copy it.
      if (shown.current) getSelection()?.selectAllChildren(shown.current);
    }
  };
  return (
    <span class="copyable">
      <code ref={shown} data-secret={secret} title={short === undefined ? undefined : text}>
        {short ?? text}
      </code>
      <Button
        icon={copied ? "check" : "copy"}
        weight="quiet"
        label={copied ? "Copied" : `Copy ${label}`}
        onClick={() => void copy()}
      />
    </span>
  );
}

/** A relative time; the exact time is in its tooltip. */
export function When({ at, now, future }: { at: string; now: number; future?: boolean }) {
  return (
    <time dateTime={at} title={exactly(at)}>
      {future ? ahead(at, now) : ago(at, now)}
    </time>
  );
}

interface CardProps {
  title: string;
  aside?: ComponentChildren;
  children: ComponentChildren;
  kind?: string;
}

export function Card({ title, aside, children, kind }: CardProps) {
  const id = useId();
  return (
    <section class={`card${kind ? ` ${kind}` : ""}`} aria-labelledby={id}>
      <header class="card-head">
        <h2 id={id}>{title}</h2>
        {aside}
      </header>
      {children}
    </section>
  );
}

/** Shown while data is loading. */
export function Placeholder({ lines = 3 }: { lines?: number }) {
  return (
    <div class="waiting" role="status" aria-label="Loading">
      {Array.from({ length: lines }, (_, at) => (
        <span key={at} />
      ))}
    </div>
  );
}

export function Badge({ children, kind }: { children: ComponentChildren; kind?: string }) {
  return <span class={`badge${kind ? ` ${kind}` : ""}`}>{children}</span>;
}
