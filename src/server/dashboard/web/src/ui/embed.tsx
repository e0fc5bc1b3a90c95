// A page of another system, such as a board of metrics, if the server names one.

/** The frame. `queue` replaces `{queue}` in the address. */
export function Embedded({
  address,
  queue = '',
}: {
  address: string | null | undefined;
  queue?: string;
}) {
  if (!address || !/^https?:\/\//.test(address)) return null;
  const url = address.replaceAll('{queue}', encodeURIComponent(queue));
  return (
    <details class="panel embed">
      <summary>{new URL(url).host}</summary>
      <iframe
        src={url}
        title={`Page of ${new URL(url).host}`}
        sandbox="allow-scripts allow-same-origin"
        loading="lazy"
      />
    </details>
  );
}
