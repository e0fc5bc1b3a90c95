// A menu below its button. It closes by Escape, by a click elsewhere, and when the focus leaves it.

import type { ComponentChildren } from 'preact';
import { useEffect, useRef } from 'preact/hooks';

/** The menu. What is inside may call `close`. */
export function Menu(props: { title: string; children: (close: () => void) => ComponentChildren }) {
  const element = useRef<HTMLDetailsElement>(null);
  const close = () => element.current?.removeAttribute('open');
  useEffect(() => {
    const outside = (event: Event) => {
      const inside = event.target instanceof Node && element.current?.contains(event.target);
      if (!inside) close();
    };
    const onKey = (event: KeyboardEvent) => {
      if (event.key !== 'Escape' || !element.current?.open) return;
      close();
      element.current.querySelector('summary')?.focus();
    };
    addEventListener('pointerdown', outside);
    addEventListener('focusin', outside);
    addEventListener('keydown', onKey);
    return () => {
      removeEventListener('pointerdown', outside);
      removeEventListener('focusin', outside);
      removeEventListener('keydown', onKey);
    };
  }, []);
  return (
    <details class="choice" ref={element}>
      <summary>{props.title}</summary>
      <div class="menu-list">{props.children(close)}</div>
    </details>
  );
}
