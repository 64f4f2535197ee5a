//! What is wanted, what each agent saw, and the merge of both.

pub mod distance;
pub mod layout;
pub mod member;
pub mod observed;
pub mod seating;
pub mod spec;
pub mod track;
pub mod view;
