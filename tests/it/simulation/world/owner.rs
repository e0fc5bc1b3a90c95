//! The owner: configures the queue, and changes its limits while it runs.

use std::{sync::Arc, time::Duration};

use tidegate_core::{
    calendar::window::Window,
    job::{
        retry::{Backoff, Jitter, Retry},
        type_config::{Delivery, Start, TypeConfig},
    },
    queue::{
        QueueConfig,
        config::{Constraint, OrderKind, Rate},
        matcher::Matcher,
    },
    target::{Push, TargetConfig},
    time::Seconds,
};
use tidegate_engine::{Engine, testkit::builders::name};

use super::super::{model::MAX_RELEASES, plugins};
use super::{MAX_PROCESS_PAUSE, PLAIN_TYPE, RESPONSE_TIMEOUT, World};

impl World {
    /// Sets the first configuration.
    pub(super) async fn configure(self: Arc<Self>) {
        let engine = self.any_engine();
        for (plugin, number) in [(plugins::GUARD, 1), (plugins::PLANNER, 1)] {
            assert!(
                plugins::push(&engine, plugin, number, 1).await,
                "without faults a plugin can be pushed"
            );
        }
        let config = if self.config.late_limit { QueueConfig::default() } else { self.limits() };
        assert!(self.put_queue(&engine, config).await, "without faults a queue can be configured");
        for job_type in self.job_types() {
            assert!(
                self.put_type(&engine, job_type, None).await,
                "without faults a type can be configured"
            );
        }
        let ends = serde_json::json!({"job_types": ["push-once"], "enqueue": {"type": "pull"}});
        let ends = serde_json::from_value(ends).expect("a trigger");
        let is_put = engine.put_trigger(&name("ends"), ends, None).await.is_ok();
        assert!(is_put, "without faults a trigger can be configured");
    }

    async fn put_queue(&self, engine: &Engine, config: QueueConfig) -> bool {
        match engine.put_queue(&self.queue, config, None).await {
            Ok((item, _)) => {
                self.model.lock().promise(&self.queue, item.version);
                self.request_tick(self.scheduler.now());
                true
            }
            Err(_) => false,
        }
    }

    async fn put_type(&self, engine: &Engine, job_type: &str, concurrency: Option<u32>) -> bool {
        let once = job_type.ends_with("once");
        let target = job_type
            .starts_with("push")
            .then(|| TargetConfig::Push(Box::new(Push::to("http://127.0.0.1:1/"))));
        let retry = if self.config.plugins && !once {
            Retry::Plugin(name(plugins::PLANNER), Arc::new(serde_json::json!({})))
        } else {
            Retry::Exponential(Backoff {
                base_seconds: Seconds::new(1),
                max_seconds: Seconds::new(8),
                jitter: Jitter::Full,
            })
        };
        let plain = job_type == PLAIN_TYPE;
        let config = TypeConfig {
            queue: self.queue.clone(),
            start: if plain { Start::Plain } else { Start::default() },
            target,
            delivery: if once { Delivery::AtMostOnce } else { Delivery::AtLeastOnce },
            // Such a type may not have a limit of its own, because its jobs would not count.
            concurrency: concurrency.filter(|_| !plain),
            timeout_seconds: Seconds::new(60),
            response_timeout_seconds: RESPONSE_TIMEOUT,
            lease_seconds: Seconds::new(15),
            max_releases: MAX_RELEASES,
            retry,
            ..TypeConfig::default()
        };
        let is_put = engine.put_type(&name(job_type), config, None).await.is_ok();
        self.request_tick(self.scheduler.now());
        is_put
    }

    /// Random limits.
    fn limits(&self) -> QueueConfig {
        let s = &self.scheduler;
        if self.config.light {
            return QueueConfig {
                concurrency: Some(200),
                partition_by: self.config.strict.then(|| "tenant".into()),
                strict_order: self.config.strict,
                ..QueueConfig::default()
            };
        }
        let mut constraints = Vec::new();
        if s.happens(0.5) {
            constraints.push(Constraint {
                name: "tenant".into(),
                matcher: Matcher::default(),
                per: Some("tenant".into()),
                concurrency: Some(s.pick(&[1, 2, 3, 4])),
                rate: None,
            });
        }
        if s.happens(0.4) {
            let rate = Rate {
                count: s.pick(&[1, 2, 5, 40]),
                per_seconds: Seconds::new(s.pick(&[1, 3, 60])),
                burst: s.pick(&[None, None, Some(3)]),
            };
            constraints.push(Constraint {
                name: "rate".into(),
                matcher: serde_json::from_value(
                    serde_json::json!({"attribute": {"region": "east"}}),
                )
                .expect("a matcher"),
                per: s.happens(0.5).then(|| "tenant".into()),
                concurrency: s.happens(0.3).then_some(3),
                rate: Some(rate),
            });
        }
        let strict = self.config.strict;
        let order = s.pick(&[OrderKind::Time, OrderKind::Priority]);
        let order = if strict { OrderKind::Time } else { order };
        QueueConfig {
            concurrency: s.pick(&[
                None,
                Some(0),
                Some(1),
                Some(2),
                Some(4),
                Some(4),
                Some(6),
                Some(9),
            ]),
            order,
            order_step_seconds: Seconds::new(s.pick(&[0, 5, 60])),
            ageing_seconds: (order == OrderKind::Priority && s.happens(0.5))
                .then(|| Seconds::new(1)),
            partition_by: (s.happens(0.5) || strict).then(|| "tenant".into()),
            partition_then_by: None,
            strict_order: strict,
            constraints,
            throttler: (self.config.plugins && !strict && s.happens(0.8)).then(plugins::throttler),
            plugin_calls: None,
        }
    }

    /// Changes limits until the faults end.
    pub(super) async fn change_limits(self: Arc<Self>) {
        let s = &self.scheduler;
        if self.config.late_limit {
            s.elapse(Duration::from_secs(40) + s.span(30.0)).await;
            // The worst moment for a first limit: a job is about to start without a grant.
            for _ in 0..200 {
                if self.is_claiming() {
                    break;
                }
                s.elapse(Duration::from_millis(50)).await;
            }
            let limits = self.limits();
            self.put_queue(&self.any_engine(), limits).await;
        }
        loop {
            let engine = self.any_engine();
            match s.draw(4) {
                0 | 1 => {
                    let limits = self.limits();
                    self.put_queue(&engine, limits).await;
                }
                2 if self.config.plugins && s.happens(0.5) => {
                    // Most new versions keep the state of the version before.
                    plugins::push(&engine, plugins::GUARD, s.draw(1000), s.pick(&[1, 1, 2])).await;
                }
                2 => {
                    let paused = s.happens(0.4);
                    if let Ok(item) = engine.pause_queue(&self.queue, paused).await {
                        self.model.lock().promise(&self.queue, item.version);
                        self.request_tick(s.now());
                    }
                }
                _ => {
                    let most = s.pick(&[None, Some(1), Some(3)]);
                    self.put_type(&engine, s.pick(self.job_types()), most).await;
                }
            }
            s.elapse(Duration::from_secs(5) + s.span(40.0)).await;
            // A few changes a day are enough.
            if let Some(on_at) = self.ticks_off_until().filter(|_| s.happens(0.5)) {
                s.elapse_until(on_at).await;
            }
            if !self.faults_active() {
                return;
            }
        }
    }

    /// Sets limits that let everything finish.
    pub(super) async fn end_with_open_limits(self: Arc<Self>) {
        // A process that was paused before the faults ended may still write.
        self.scheduler.elapse(MAX_PROCESS_PAUSE).await;
        let engine = self.any_engine();
        let constraint = Constraint {
            name: "tenant".into(),
            matcher: Matcher::default(),
            per: Some("tenant".into()),
            concurrency: Some(5),
            rate: None,
        };
        let throttler = self.config.plugins.then(plugins::throttler);
        // One after another, many jobs take longer than the world lasts.
        let strict = self.config.strict && self.config.jobs <= 30;
        let throttler = throttler.filter(|_| !strict);
        let limits = QueueConfig {
            concurrency: Some(8),
            partition_by: strict.then(|| "tenant".into()),
            strict_order: strict,
            constraints: vec![constraint],
            throttler,
            ..QueueConfig::default()
        };
        assert!(self.put_queue(&engine, limits).await, "without faults a queue can be configured");
        engine
            .pause_queue(&self.queue, false)
            .await
            .expect("without faults a queue can be resumed");
        for job_type in self.job_types() {
            assert!(
                self.put_type(&engine, job_type, Some(6)).await,
                "without faults a type can be configured"
            );
        }
    }
}

/// Open in every other minute of the first half hour of the day.
pub(super) fn every_other_minute() -> Vec<Window> {
    (0..15)
        .map(|n| {
            let (from, to) = (format!("00:{:02}", 2 * n), format!("00:{:02}", 2 * n + 1));
            serde_json::from_value(serde_json::json!({"from": from, "to": to})).expect("a window")
        })
        .collect()
}
