// Purging a queue: how many jobs that drops is counted before.

import { useEffect, useState } from 'preact/hooks';
import { message, path, post } from '../api/client';
import type { Operation } from '../api/types';
import { plural } from '../lib/format';
import { finished, followOperation } from '../shell/operations';
import { Confirm } from '../ui/dialog';

/** The dialog. */
export function PurgeDialog({
  queue,
  onClose,
  onDone,
}: {
  queue: string;
  onClose: () => void;
  onDone: () => void;
}) {
  const [jobs, setJobs] = useState<number | null>(null);
  const [wrong, setWrong] = useState('');
  useEffect(() => {
    // A purge has no dry run; a cancel of the same jobs counts them.
    const body = { filter: { queue, state: ['scheduled'] }, dry_run: true };
    post<{ operation: Operation }>('v1/jobs/cancel', body)
      .then(({ operation }) => finished(operation))
      .then((operation) => setJobs(operation.done))
      .catch((error) => setWrong(message(error)));
  }, [queue]);
  const work = async () => {
    const { operation } = await post<{ operation: Operation }>(path`v1/queues/${queue}/purge`);
    followOperation(operation, `Purge ${queue}`);
    onDone();
  };
  return (
    <Confirm
      title={`Purge ${queue}?`}
      verb={jobs === null ? 'Purge' : `Drop ${plural(jobs, 'job')}`}
      danger
      disabled={jobs === null || jobs === 0}
      onClose={onClose}
      work={work}
    >
      <p role="status">
        {wrong ||
          (jobs === null
            ? 'Counting …'
            : `${plural(jobs, 'job')} that wait, ready, retrying and scheduled for later, end as dropped.`)}
      </p>
      <p>Running jobs go on. A purge cannot be undone.</p>
    </Confirm>
  );
}
