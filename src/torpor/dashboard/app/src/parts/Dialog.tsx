// A modal dialog.

import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import { Button, ErrorMessage } from "./controls.tsx";

interface DialogProps {
  title: string;
  children: ComponentChildren;
  /** The label of the confirm button; a dialog without it only shows something. */
  confirm?: string;
  cancel?: string;
  danger?: boolean;
  busy?: boolean;
  error?: string;
  wide?: boolean;
  onConfirm?: () => void;
  onClose: () => void;
}

/** The browser's modal dialog: it keeps the focus inside, closes on Esc, and restores the focus. */
export function Dialog({
  title,
  children,
  confirm,
  cancel = "Cancel",
  danger,
  busy,
  error,
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
    // In a dialog that deletes something, Enter and Space cancel.
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
        {error && <ErrorMessage>{error}</ErrorMessage>}
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
