//! On the embedded engine, in this process: live pipelines, histories that move, crashes, and damage.

mod anew;
mod bad;
mod chosen_ends;
mod counted;
mod damage;
mod effects;
mod property;
mod retention;
mod searching;
mod standing_back;
mod stores;
mod swapping;
mod unproved;
mod world;
