mod recurrence;
mod window;
