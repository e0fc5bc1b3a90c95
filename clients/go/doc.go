// Package tidegate has a client, a worker and push handlers for the job queue tidegate.
//
// Enqueue a job:
//
//	client, err := tidegate.NewClient(tidegate.ClientOptions{})
//	job, err := client.Enqueue(ctx, "letter", Letter{To: "ann@example.com"}, nil)
//
// Run the jobs of a type:
//
//	worker := tidegate.NewWorker(client, tidegate.WorkerOptions{})
//	tidegate.Handle(worker, "letter", tidegate.HandlerOptions{Concurrency: 3},
//		func(ctx context.Context, letter Letter, job *tidegate.Attempt) (any, error) {
//			return nil, send(ctx, letter)
//		})
//	err := worker.Run(ctx)
package tidegate

// Version is the version of this package.
const Version = "0.1.0"
