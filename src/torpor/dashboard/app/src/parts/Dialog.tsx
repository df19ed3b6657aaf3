// How does the page ask something before it goes on?

import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import { Button, Wrong } from "./controls.tsx";

interface DialogProps {
  title: string;
  children: ComponentChildren;
  /** What the button that goes on says; without it the dialog only shows something. */
  confirm?: string;
  cancel?: string;
  danger?: boolean;
  busy?: boolean;
  wrong?: string;
  wide?: boolean;
  onConfirm?: () => void;
  onClose: () => void;
}

/** The browser's own modal dialog: it traps the focus, closes on Esc, and gives the focus back. */
export function Dialog({
  title,
  children,
  confirm,
  cancel = "Cancel",
  danger,
  busy,
  wrong,
  wide,
  onConfirm,
  onClose,
}: DialogProps) {
  const id = useId();
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const shown = dialog.current;
    const before = document.activeElement;
    shown?.showModal();
    // Where something can be lost, the way back is what Enter and Space do.
    shown?.querySelector<HTMLElement>(danger ? ".actions .button:last-child" : "input, select, .actions .button")?.focus();
    return () => {
      shown?.close();
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={dialog}
      class={wide ? "wide" : ""}
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onClick={(event) => event.target === dialog.current && onClose()}
    >
      <form
        method="dialog"
        onSubmit={(event) => {
          event.preventDefault();
          if (confirm) onConfirm?.();
          else onClose();
        }}
      >
        <h2 id={id}>{title}</h2>
        {children}
        {wrong && <Wrong>{wrong}</Wrong>}
        <div class="actions">
          {confirm && (
            <Button type="submit" weight="main" danger={danger ?? false} busy={busy ?? false}>
              {confirm}
            </Button>
          )}
          <Button onClick={onClose}>{cancel}</Button>
        </div>
      </form>
    </dialog>
  );
}
