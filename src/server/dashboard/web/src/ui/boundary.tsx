// Catches what goes wrong while a page is shown, so that the rest of the console goes on.

import { Component, type ComponentChildren } from 'preact';

/** The boundary. A new `key` begins again. */
export class Boundary extends Component<{ children: ComponentChildren }, { error: string }> {
  override state = { error: '' };

  static override getDerivedStateFromError(error: unknown) {
    return { error: String(error) };
  }

  override componentDidCatch(error: unknown) {
    // The console of the browser shows it, and the tests look there.
    console.error(error);
  }

  override render() {
    if (!this.state.error) return this.props.children;
    return (
      <>
        <h1>This page cannot be shown</h1>
        <p class="failure" role="alert">
          {this.state.error}
        </p>
        <p>
          The answer of the server is not as expected. Its version and that of this page may differ:{' '}
          <button type="button" class="small" onClick={() => location.reload()}>
            Load the console again
          </button>
        </p>
      </>
    );
  }
}
