// Signing in: with a token, or at an identity provider.

import { useEffect, useState } from 'preact/hooks';
import { connection, message } from '../api/client';
import { refusal, session, signIn } from '../api/session';
import { Banner } from '../shell/banner';
import { route } from '../state/router';
import { Button } from '../ui/basics';

/** The sign-in page. It appears at the address that needs it, and gives way to that page. */
export function SignIn() {
  const [secret, setSecret] = useState('');
  const [error, setError] = useState('');
  const title = session.value?.console?.title ?? 'tidegate';
  const ways = session.value?.sign_in ?? ['token'];
  useEffect(() => {
    document.title = `Sign in · ${title}`;
  }, [title]);
  const submit = async () => {
    setError('');
    if (!secret.trim()) return;
    await signIn(secret.trim()).catch((cause) => setError(message(cause)));
  };
  // A sign-in at the identity provider that failed comes back to `#/sign-in?error=TEXT`.
  const failed = route.value?.parts[0] === 'sign-in' ? route.value.query.get('error') : null;
  const back = failed === null ? location.hash || '#/' : '#/';
  const wrong = error || refusal.value || failed;
  return (
    <main class="alone">
      <Banner />
      <h1>{title}</h1>
      {wrong && (
        <p class="failure" role="alert">
          {wrong}
        </p>
      )}
      {ways.includes('oidc') && (
        <p>
          <a class="button primary" href={`./console/sign-in?return=${encodeURIComponent(back)}`}>
            Sign in with your organisation
          </a>
        </p>
      )}
      {ways.includes('token') && (
        <form
          onSubmit={(event) => {
            event.preventDefault();
            void submit();
          }}
        >
          <label for="token">Access token</label>
          <input
            id="token"
            type="password"
            autoComplete="current-password"
            value={secret}
            aria-describedby="about-token"
            aria-invalid={Boolean(wrong)}
            onInput={(event) => setSecret(event.currentTarget.value)}
          />
          <small id="about-token" class="soft">
            It needs the scope read. This tab keeps it until it is closed, and shares it with other
            open tabs.
          </small>
          <Button kind="primary" onClick={submit} disabled={connection.value === 'no_answer'}>
            Sign in
          </Button>
        </form>
      )}
    </main>
  );
}
