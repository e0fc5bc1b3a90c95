// The console starts here.

import { render } from 'preact';
import 'uplot/dist/uPlot.min.css';
import './style.css';
import { start } from './api/session';
import { App } from './app';
import { startStream } from './state/live';

const root = document.getElementById('console');
if (root) {
  render(<App />, root);
  start().catch(() => null);
  startStream();
}
